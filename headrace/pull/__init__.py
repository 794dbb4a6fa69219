"""`headrace pull`: make a model directory in Hugging Face form from a catalogue name, a .gguf file or a hub repository."""
