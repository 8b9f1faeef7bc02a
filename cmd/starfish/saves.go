package main

import (
	"fmt"
	"strings"

	"starfish/internal/cli"
	"starfish/pserver/pb"
)

// saves is what the owners of shards say of their checkpoints.
type saves struct {
	// failing lists the shards of which the newest save has failed, and busy
	// those that are not just being served, both by number.
	failing, busy []shardNews
}

// shardNews is what one owner says of one shard.
type shardNews struct {
	shard   int
	pserver string
	text    string // why it cannot be saved, or what is done with it
}

// note notes what the owner of a shard has said.
func (s *saves) note(shard int, pserver string, st *pb.ShardStats) {
	const serving = "serving" // the keeper of a shard has nothing else to do
	switch {
	case st.CheckpointError != "":
		s.failing = append(s.failing, shardNews{shard, pserver, cli.Plain(st.CheckpointError)})
	case st.Doing != "" && st.Doing != serving:
		s.busy = append(s.busy, shardNews{shard, pserver, cli.Plain(st.Doing)})
	}
}

// trouble says which shards cannot be saved and why the first one cannot; "" if
// all can.
func (s *saves) trouble() string {
	if len(s.failing) == 0 {
		return ""
	}
	first := s.failing[0]
	return fmt.Sprintf("%s cannot be saved: shard %d on %s: %s", shardsOf(s.failing), first.shard, first.pserver, first.text)
}

// waits says what a job that drains waits for: what cannot be saved, or what is
// done with the shards; "" if nothing is.
func (s *saves) waits() string {
	if trouble := s.trouble(); trouble != "" || len(s.busy) == 0 {
		return trouble
	}
	first := s.busy[0]
	var alike []shardNews
	for _, n := range s.busy {
		if n.text == first.text {
			alike = append(alike, n)
		}
	}
	return shardsOf(alike) + ": " + first.text
}

// shardsOf names the shards.
func shardsOf(news []shardNews) string {
	names := make([]string, len(news))
	for i, n := range news {
		names[i] = fmt.Sprint(n.shard)
	}
	return numbered("shard", "shards", names)
}

// pserversOf names the pservers, each once, in the order of their shards.
func pserversOf(news []shardNews) string {
	var names []string
	seen := make(map[string]bool)
	for _, n := range news {
		if !seen[n.pserver] {
			seen[n.pserver] = true
			names = append(names, n.pserver)
		}
	}
	return strings.Join(names, ", ")
}
