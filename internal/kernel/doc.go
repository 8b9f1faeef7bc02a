// Package kernel has the loops that the vector units of a processor do faster
// than compiled Go: updates of dense weights, the look for what is not finite,
// and the product of matrices; and what asks for cache lines before they are read.
//
// What is in assembly has a plain twin, and a test that compares the two. An
// update does the very operations of its twin in their order, each rounded as
// there, so its results are the same, bit by bit, on every processor, with
// vectors or without. Only the order in which a product of matrices adds, and
// whether a product is rounded before it is added, depend on the processor: the
// same build on the same kind gives the same bits.
//
// Nothing here allocates, apart from a Multiplier's memory, or keeps what it was
// given. Slices that are too short panic.
package kernel
