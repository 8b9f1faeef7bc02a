// Package bareloop is the yardstick of `make bench`: a parameter-server loop
// with nothing around it.
//
// Workers parse libsvm text, find the distinct keys of a batch, send each server
// one message with the gradients of the previous batch and the keys of the next,
// receive weights, and compute logistic regression with AdaGrad. Servers keep
// (weight, accumulator) pairs in flat arrays and apply in place. There is one
// step of staleness. It speaks plain TCP over loopback and has no framework, no
// recovery and no checks: what a real system reaches of its speed is the price
// of everything that this loop leaves out.
//
// It expects rows of at most 39 keys of the form k:1, of keys below 2^32; and
// panics on anything else, since it is no part of the product.
package bareloop
