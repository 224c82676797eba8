package conformance

var historyTests, plotTests []cudaTest
