package report

import (
	"cmp"
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

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
)

// names returns the days with a file, in order.
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

func (k *Keeper) file(day string) string { return filepath.Join(k.Dir, day+suffix) }

// IsDay reports whether a file with this name holds a day.
func IsDay(name string) bool {
	day, ok := strings.CutSuffix(name, suffix)
	_, err := time.Parse(time.DateOnly, day)
	return ok && err == nil
}

// head begins a day's file: data for the next report, and the day's faults.
type head struct {
	Name   string    `json:"name"`
	Faults []counted `json:"faults"`
}

func headOf(d *Day) head {
	names := map[counted]bool{}
	for _, n := range d.Nodes {
		for name := range n.Faults {
			names[name] = true
		}
		for _, o := range n.Open {
			names[o.Name] = true
		}
	}
	return head{d.Name, slices.Collect(maps.Keys(names))}
}

// load reads a day's file, and the state at its end, unless state is nil.
func load(name string, state **model.Model) (*Day, error) {
	var h head
	d := &Day{}
	err := read(name, func(in io.Reader) error {
		decoder := json.NewDecoder(in)
		if err := cmp.Or(decoder.Decode(&h), decoder.Decode(d)); err != nil || state == nil {
			return err
		}
		m, err := model.Load(io.MultiReader(decoder.Buffered(), in), d.Journal)
		*state = m
		return err
	})
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

// read reads a file with use, and the rest for the checksum at its end.
func read(name string, use func(io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := gzip.NewReader(f)
	if err == nil {
		limited := io.LimitReader(in, maxDay)
		if err = use(limited); err == nil {
			_, err = io.Copy(io.Discard, limited)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// readHead reads the head of a day's file.
func readHead(name string) (h head, err error) {
	err = read(name, func(in io.Reader) error { return json.NewDecoder(in).Decode(&h) })
	return h, err
}

// save writes a day and the state at its end to a file.
func save(name string, d *Day, state *model.Model) error {
	return atomicfile.Write(name, func(w io.Writer) error {
		out, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		encoder := json.NewEncoder(out)
		if err = errors.Join(encoder.Encode(headOf(d)), encoder.Encode(d)); err == nil && state != nil {
			_, err = state.Save(out, d.Journal)
		}
		return errors.Join(err, out.Close())
	})
}

// Adopt writes a day from a backup with the new UUID of the restored journal.
func Adopt(from, to, journalID string) error {
	var state *model.Model
	d, err := load(from, &state)
	if err != nil { // an older version's, without the state
		d, err = load(from, nil)
	}
	if err != nil {
		return err
	}
	d.Journal = journalID
	return save(to, d, state)
}
