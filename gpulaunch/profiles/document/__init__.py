"""The file format of profiles: sections, inheritance, scaling, schema."""
