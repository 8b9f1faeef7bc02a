package main

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"starfish/campaign/history"
)

// Pause is how long a shard was not served because it was handed over.
type Pause struct {
	Shard      int     `json:"shard"`
	Generation int64   `json:"generation"` // the receiver's
	Bytes      int64   `json:"bytes"`      // of the checkpoint that went over; 0: not known
	Seconds    float64 `json:"seconds"`
}

// logField is a field of a line of a log.
var logField = regexp.MustCompile(`(?:^| )(shard|generation|seconds)=([0-9.e+-]+)`)

// readPauses reads the pauses from the logs of the pservers in dir: those of all
// shards that were served by their receivers. sizes are the bytes that went over,
// by the receiver's ownership.
func readPauses(dir string, sizes map[history.Ownership]int64) ([]Pause, error) {
	files, err := filepath.Glob(filepath.Join(dir, pservers+"-*.log"))
	if err != nil {
		return nil, err
	}
	var pauses []Pause
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if !strings.Contains(lines.Text(), `msg="received the shard"`) {
				continue
			}
			var p Pause
			for _, m := range logField.FindAllStringSubmatch(lines.Text(), -1) {
				v, _ := strconv.ParseFloat(m[2], 64) // a line that was cut off counts for nothing
				switch m[1] {
				case "shard":
					p.Shard = int(v)
				case "generation":
					p.Generation = int64(v)
				case "seconds":
					p.Seconds = v
				}
			}
			if p.Seconds > 0 && p.Generation > 0 {
				p.Bytes = sizes[history.Ownership{Shard: p.Shard, Generation: p.Generation}]
				pauses = append(pauses, p)
			}
		}
		err = lines.Err()
		f.Close()
		if err != nil {
			return nil, err
		}
	}
	return pauses, nil
}
