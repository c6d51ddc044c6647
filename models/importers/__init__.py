"""Import of other libraries' FNO checkpoints, without running code from them."""
