"""What the mock engine is made of: requests read, answers written, time passed and faults acted out."""
