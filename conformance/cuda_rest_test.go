package conformance

var poolTests, copyTests, historyTests, plotTests []cudaTest
