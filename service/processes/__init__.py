"""The service as several processes of one host: front ends, an engine for each device, and their supervisor."""
