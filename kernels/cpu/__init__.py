"""A whole step of a Llama-family decoder on a CPU, as one operator in C++ (`native/`)."""
