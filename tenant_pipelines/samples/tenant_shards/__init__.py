"""A sample fleet that tells a story: one tenant crashes, and only what it lost runs again."""
