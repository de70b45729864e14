"""A REST service for trained models, and a page for people; needs the extra ``serve``."""
