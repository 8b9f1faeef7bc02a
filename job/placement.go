package job

import (
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// BlockSize is the number of elements of a block of a dense parameter; the
// last block may be shorter.
const BlockSize = 16384

// Mix is the finaliser of splitmix64 (Steele, Lea, Flood: Fast splittable
// pseudorandom number generators, 2014): a bijection that spreads keys evenly.
func Mix(key uint64) uint64 {
	key ^= key >> 30
	key *= 0xbf58476d1ce4e5b9
	key ^= key >> 27
	key *= 0x94d049bb133111eb
	return key ^ key>>31
}

// ShardOf is the shard of a sparse key: the high 64 bits of Mix(key) × shards.
// It is part of the formats.
func ShardOf(key uint64, shards int) int {
	hi, _ := bits.Mul64(Mix(key), uint64(shards))
	return int(hi)
}

// BlockShard is the shard of a block of a dense parameter: (xxh64(name) +
// block) mod shards, the sum taken modulo 2^64. It is part of the formats.
func BlockShard(param string, block, shards int) int {
	return int((xxhash.Sum64String(param) + uint64(block)) % uint64(shards))
}
