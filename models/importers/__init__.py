"""Reading the checkpoints of other FNO libraries, never running anything from them, into native ones."""
