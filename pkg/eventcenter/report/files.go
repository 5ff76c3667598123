package report

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

// version is the format of a day's file.
const version = 1

// dayFile is a day's file, after its head.
type dayFile struct {
	Version int    `json:"version"`
	Journal string `json:"journal"`
	model.Day
}

// names returns the days with a file, in order.
func (k *Keeper) names() ([]string, error) { return Days(k.Dir) }

// Days returns the days that have a file in a directory, in order.
func Days(dir string) (days []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if IsDay(entry.Name()) {
			days = append(days, strings.TrimSuffix(entry.Name(), suffix))
		}
	}
	return days, err
}

// File returns the name of a day's file.
func File(day string) string { return day + suffix }

// IsDay reports whether a file with this name holds a day.
func IsDay(name string) bool {
	day, ok := strings.CutSuffix(name, suffix)
	_, err := time.Parse(time.DateOnly, day)
	return ok && err == nil
}

// head begins a day's file: data for the next report, and the day's faults.
type head struct {
	Name   string   `json:"name"`
	Faults []string `json:"faults"`
}

func headOf(d *model.Day) head {
	names := map[string]bool{}
	for _, n := range d.Nodes {
		for name := range n.Faults {
			names[name] = true
		}
		for _, o := range n.Open {
			names[o.Name] = true
		}
	}
	return head{d.Name, slices.Sorted(maps.Keys(names))}
}

func load(name string) (*dayFile, error) {
	_, d, err := read(name, false)
	if err == nil && (d.Version != version || d.Nodes == nil) {
		err = fmt.Errorf("%s: its format is not %d", name, version)
	}
	if err != nil {
		return nil, err
	}
	for key, n := range d.Nodes {
		if n == nil {
			return nil, fmt.Errorf("%s: node %q: nothing is known of it", name, key)
		}
	}
	return d, nil
}

// read reads a day's file, or only its head.
func read(name string, headOnly bool) (h head, d *dayFile, err error) {
	f, err := os.Open(name)
	if err != nil {
		return h, nil, err
	}
	defer f.Close()
	d = &dayFile{}
	in, err := gzip.NewReader(f)
	if err == nil {
		limited := io.LimitReader(in, maxDay)
		decoder := json.NewDecoder(limited)
		if err = decoder.Decode(&h); err == nil && !headOnly {
			if err = decoder.Decode(d); err == nil {
				_, err = io.Copy(io.Discard, limited) // the checksum is at the end
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return h, d, err
}

// save writes a day to a file.
func save(name string, d *dayFile) error {
	return atomicfile.Write(name, func(w io.Writer) error {
		out, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		encoder := json.NewEncoder(out)
		return errors.Join(encoder.Encode(headOf(&d.Day)), encoder.Encode(d), out.Close())
	})
}

// Adopt writes a day from a backup with the new UUID of the restored journal.
func Adopt(from, to, journalID string) error {
	d, err := load(from)
	if err != nil {
		return err
	}
	d.Journal = journalID
	return save(to, d)
}
