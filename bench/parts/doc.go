// Command parts measures the parts of a job, each next to what cannot be
// avoided: the parser, the data plane, lookups and updates, the queue, and the
// memory of a pserver.
//
// A part runs in rounds. Each round runs the part and its yardstick one after
// the other, in turning order, and gives one ratio; the result is the median of
// the rounds, beside the part's target. What happens in one thread is measured in
// processor time, which other load on the machine changes least; the rest in wall
// time, or, with -cpu, in processor time too.
//
//	go run ./bench/parts [-only REGEXP] [-rounds N] [-keys N] [-rows N] [-cpu]
package main
