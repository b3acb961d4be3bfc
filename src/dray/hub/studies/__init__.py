"""Questions that take seconds to minutes: what if, how would last week have gone, what would one more worker bring."""
