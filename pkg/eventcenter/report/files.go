package report

import (
	"bufio"
	"bytes"
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
		if err := decoder.Decode(&h); err != nil {
			return err
		}
		var err error
		if d, err = decodeDay(decoder); err != nil {
			return err
		}
		if d == nil || d.Version != version || d.Nodes == nil {
			return fmt.Errorf("its format is not %d", version)
		}
		_, err = io.Copy(io.Discard, rest) // the checksum is at the end
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

// noNodes is what the JSON of a day without nodes has in their place.
const noNodes = `"nodes":null`

// encodeDay writes the JSON of a day, node by node: all of it at once would need its size in memory, twice.
func encodeDay(out io.Writer, d *Day) error {
	frame := *d
	frame.Nodes = nil
	text, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	begin, end, _ := bytes.Cut(text, []byte(noNodes))
	buffered := bufio.NewWriter(out)
	_, err = fmt.Fprintf(buffered, `%s"nodes":{`, begin)
	comma := ""
	for _, key := range slices.Sorted(maps.Keys(d.Nodes)) {
		name, err1 := json.Marshal(key)
		node, err2 := json.Marshal(d.Nodes[key])
		_, err3 := fmt.Fprintf(buffered, "%s%s:%s", comma, name, node)
		if err = errors.Join(err, err1, err2, err3); err != nil {
			return err
		}
		comma = ","
	}
	_, err2 := fmt.Fprintf(buffered, "}%s\n", end)
	return errors.Join(err, err2, buffered.Flush())
}

// decodeDay reads the JSON of a day, node by node.
func decodeDay(decoder *json.Decoder) (*Day, error) {
	nodes, rest := map[string]*Node{}, map[string]json.RawMessage{}
	err := members(decoder, func(name string) error {
		if name == "nodes" {
			return members(decoder, func(key string) error {
				var n *Node
				if err := decoder.Decode(&n); err != nil || n == nil {
					return errors.Join(fmt.Errorf("node %q: nothing is said of it", key), err)
				}
				nodes[key] = n
				return nil
			})
		}
		var value json.RawMessage
		err := decoder.Decode(&value)
		rest[name] = value
		return err
	})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(rest)
	if err != nil {
		return nil, err
	}
	var d *Day
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, err
	}
	d.Nodes = nodes
	return d, nil
}

// members calls use with the name of each member of the object that comes next; it reads the value.
func members(decoder *json.Decoder, use func(name string) error) error {
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return errors.Join(fmt.Errorf("%v where an object is to be", token), err)
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return err
		}
		if err := use(fmt.Sprint(name)); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}

// save writes a day.
func save(name string, d *Day) error {
	return atomicfile.Write(name, func(w io.Writer) error {
		out, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		return errors.Join(json.NewEncoder(out).Encode(headOf(d)), encodeDay(out, d), out.Close())
	})
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
