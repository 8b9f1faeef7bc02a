package etcdqueue

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// rewrite makes the transcript tests write their files instead of comparing.
var rewrite = flag.Bool("rewrite", false, "rewrite the transcripts in testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
