"""What runs on a Spark itself: long jobs with progress in files, and the small commands beside them."""
