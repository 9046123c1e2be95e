package options

// Synonyms is for tests that know all options.
var Synonyms = synonyms
