"""The pure core: values in, values out. Nothing below here can read a clock, a socket, a file or a random number."""
