// Command parts measures the parts of a job, each next to what cannot be
// avoided: the parser, the data plane, lookups and updates, the queue, and the
// memory of a pserver.
//
// A part runs in rounds. Each round runs the part and its yardstick one after
// the other, in turning order, and gives one ratio; the result is the median of
// the rounds, beside the part's target. Where other load on the machine would
// decide, the ratio is of processor time, and the name says so.
//
//	go run ./bench/parts [-only REGEXP] [-rounds N] [-keys N] [-rows N]
package main
