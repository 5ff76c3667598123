package report

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// names returns the days that have a file, in order.
func (k *Keeper) names() (names []string, err error) {
	entries, err := os.ReadDir(k.Dir)
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), suffix)
		if _, bad := time.Parse(time.DateOnly, name); ok && bad == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// IsDay reports whether a file of this name is a day's.
func IsDay(name string) bool {
	day, ok := strings.CutSuffix(name, suffix)
	_, err := time.Parse(time.DateOnly, day)
	return ok && err == nil
}

// head begins a day's file: what the report after it needs, and which faults there were.
type head struct {
	Name   string   `json:"name"`
	Faults []string `json:"faults"`
}

func headOf(d *Day) head {
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

func (k *Keeper) load(name string) (*Day, error) { return load(filepath.Join(k.Dir, name+suffix)) }

// read gives use the JSON of a day's file.
func read(name string, use func(*json.Decoder, io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := gzip.NewReader(f)
	if err == nil {
		limited := io.LimitReader(in, maxDay)
		err = use(json.NewDecoder(bufio.NewReaderSize(limited, 1<<16)), limited)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func load(name string) (d *Day, err error) {
	err = read(name, func(decoder *json.Decoder, rest io.Reader) error {
		var h head
		if err := errors.Join(decoder.Decode(&h), decoder.Decode(&d)); err != nil {
			return err
		}
		if d == nil || d.Version != version || d.Nodes == nil {
			return fmt.Errorf("its format is not %d", version)
		}
		_, err := io.Copy(io.Discard, rest) // the checksum is at the end
		return err
	})
	if err != nil {
		return nil, err
	}
	if d.Silent == nil {
		d.Silent = map[string]bool{}
	}
	return d, nil
}

// save writes a day: the old file or the new one is there, never a part.
func save(name string, d *Day) error {
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	out, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err == nil {
		encoder := json.NewEncoder(out)
		err = errors.Join(encoder.Encode(headOf(d)), encoder.Encode(d), out.Close(), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name+".new"))
	}
	return os.Rename(name+".new", name)
}

// Adopt writes a day of a journal that was backed up under the new UUID of the restored one.
func Adopt(from, to, journalID string) error {
	d, err := load(from)
	if err != nil {
		return err
	}
	d.Journal = journalID
	return save(to, d)
}
