// Package failpoint names the points of the code at which the fault campaign
// kills a process.
//
// In every ordinary build Hit is an empty function, which the compiler leaves
// out together with the name of the point: nothing is called, nothing is
// looked up, and no variable of the environment means anything. Only a program
// built with the tag `failpoints` listens (armed.go). There the variable
// STARFISH_FAILPOINTS names a directory:
//
//	armed/<point>   the first process that hits the point takes the file away,
//	                lingers there for the duration that stands in the file (none:
//	                not at all) while its other goroutines go on, and kills itself
//	struck/<point>.<pid>   what became of the file: who was killed there
//	pace/<point>    every hit of the point takes so long, while the file is there
//
// A file is renamed by one process only, so a point that is armed strikes once.
package failpoint

// Point is a place in the code.
type Point string

// The points, in the order of a job's life.
const (
	BeforeCreate Point = "before-create" // the job's records are made up, not written
	AfterCreate  Point = "after-create"  // and written, which the creator does not know yet

	AfterClaim   Point = "after-claim"   // a shard is claimed, and not loaded
	AfterReceipt Point = "after-receipt" // a shard was handed over to this pserver, and is not loaded
	BeforeReopen Point = "before-reopen" // what a restore has lost is known, and not reopened

	AfterTake      Point = "after-take"      // chunks are taken, which the trainer does not know yet
	BetweenPushes  Point = "between-pushes"  // a batch was sent to one pserver and not to another
	BeforeComplete Point = "before-complete" // chunks are acknowledged by every shard, and not Complete
	AfterComplete  Point = "after-complete"  // and Complete, which the trainer does not know yet

	SaveBegun   Point = "save-begun"   // a checkpoint's temporary file is there
	SaveWritten Point = "save-written" // and written and synced
	SaveRenamed Point = "save-renamed" // and renamed
	SaveSynced  Point = "save-synced"  // and its directory is synced, but it is not listed
	SaveListed  Point = "save-listed"  // and listed; what it replaces is not removed

	BeforeHandOver Point = "before-handover" // shards are saved for their next owner, who is not it yet
	AfterHandOver  Point = "after-handover"  // and is, while the giver still holds them

	BeforeTurn Point = "before-turn" // the pass may turn
	AfterTurn  Point = "after-turn"  // and has turned, which the steward does not know yet

	Draining  Point = "draining"  // a shard is about to write its last checkpoint
	Finishing Point = "finishing" // the steward is about to end the job
)
