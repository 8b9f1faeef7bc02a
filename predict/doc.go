// Package predict loads a model that `starfish export` has written and scores
// records with it, inside of a program of one's own. It needs nothing but the
// file: no etcd, no pserver, no network.
//
//	m, err := predict.Load("model.npz")
//	if err != nil { … }
//	p := m.Score([]uint64{3, 11, 76}, nil) // keys as in the data, all values 1
//
// Predictions are those of the job's own evaluation, to the last bit: the same
// code reads the records (package reader), computes the keys and predicts
// (package trainer/model), and the file has every value in full precision. Rows
// that are not in the file have their initial value.
//
// Records may come in three ways: as keys and values (Score), as lines of
// libsvm text, csv or tsv (Lines), or as batches that package reader has filled
// (Predict, with the options of Options).
//
// A Model is read-only and may be used by any number of goroutines at once. In
// steady state scoring allocates nothing. A table takes (8 + 4 dim) / 0.6 bytes
// a row. Models of users are given to LoadWith as a function that makes them:
// each goroutine that scores at a moment has an instance of its own, as a
// model.Model is not safe for concurrent use.
package predict
