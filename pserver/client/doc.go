// Package client is the trainers' side of the pservers: it knows who owns
// which shard, lays a batch out over the shards, and moves pushes and pulls.
package client
