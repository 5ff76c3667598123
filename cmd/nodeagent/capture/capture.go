// Package capture makes one file with everything that a support engineer needs to know about a node. Each part is
// bounded in size and time: one that hangs or cannot be read is left out, and the manifest says why. Secrets are
// removed from all parts. Package capture only reads.
package capture

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/bundle"
)

// Format and Version are in each manifest.
const (
	Format  = "nodeagent-capture"
	Version = 1
)

// ManifestName is the name of the first member of the file.
const ManifestName = "manifest.json"

// Form is the form of a part.
type Form int

// The forms.
const (
	Text Form = iota // lines: secrets are removed; if too large, the first lines are cut off
	JSON             // secrets are removed
	Raw              // already without secrets
)

// Part is one member of the file.
type Part struct {
	Name  string // of the member
	Form  Form
	Limit time.Duration // longest time to read it
	Read  func(ctx context.Context) ([]byte, error)
}

// Limits bound the file, in bytes before compression.
type Limits struct{ Member, Total int }

// DefaultLimits are those of a file that can be attached to a ticket.
func DefaultLimits() Limits { return Limits{Member: 16 << 20, Total: 50 << 20} }

// Manifest lists the parts of a file, including missing ones.
type Manifest struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Agent   string    `json:"agent"` // version
	Taken   time.Time `json:"taken"`
	Members []Member  `json:"members"`
}

// Member is one part, read or missing.
type Member struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	Cut   string `json:"cut,omitempty"`   // missing beginning
	Error string `json:"error,omitempty"` // why it is not in the file
}

// Failed returns the members that are not in the file.
func (m Manifest) Failed() []Member {
	var failed []Member
	for _, member := range m.Members {
		if member.Error != "" {
			failed = append(failed, member)
		}
	}
	return failed
}

// Collect reads all parts at once, and returns the file, a compressed tar archive.
func Collect(ctx context.Context, agent string, parts []Part, limits Limits) ([]byte, Manifest, error) {
	m := Manifest{Format: Format, Version: Version, Agent: agent, Taken: time.Now().UTC(),
		Members: make([]Member, len(parts))}
	contents := make([][]byte, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() { contents[i], m.Members[i] = part.content(ctx, limits.Member) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return nil, m, err
	}
	left := limits.Total
	for i := range contents {
		if len(contents[i]) > left {
			m.Members[i].Error = fmt.Sprintf("left out: with its %d bytes the file would have more than %d",
				len(contents[i]), limits.Total)
			m.Members[i].Bytes, contents[i] = 0, nil
		}
		left -= len(contents[i])
	}
	file, err := archive(m, contents)
	return file, m, err
}

// content reads one part and removes secrets, so that it may be passed on.
func (p Part) content(ctx context.Context, limit int) ([]byte, Member) {
	m := Member{Name: p.Name}
	data, err := p.read(ctx)
	if err == nil {
		switch p.Form {
		case Text:
			data, m.Cut = lastLines([]byte(bundle.Printable(bundle.Scrub(string(data)))), limit)
		case JSON:
			data, err = bundle.ScrubJSON(data)
		case Raw:
		}
	}
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%d bytes, more than %d", len(data), limit)
	}
	if err != nil {
		m.Error = bundle.Printable(bundle.Scrub(err.Error()))
		return nil, m
	}
	m.Bytes = len(data)
	return data, m
}

// summing is the time that a part has after its limit, to write down the errors of calls that have reached it.
const summing = time.Second

// read reads a part, and abandons it when its time is up.
func (p Part) read(ctx context.Context) ([]byte, error) {
	hangs := fmt.Errorf("it hangs: no answer within %s", p.Limit)
	ctx, cancel := context.WithTimeoutCause(ctx, p.Limit+summing, hangs)
	defer cancel()
	return host.Abandon(ctx, func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, p.Limit, hangs)
		defer cancel()
		return p.Read(ctx)
	})
}

// lastLines cuts a text to its last lines.
func lastLines(text []byte, limit int) ([]byte, string) {
	if len(text) <= limit {
		return text, ""
	}
	from := len(text) - limit
	if next := bytes.IndexByte(text[from-1:], '\n'); next >= 0 {
		from += next
	}
	return text[from:], fmt.Sprintf("the first %d of %d bytes", from, len(text))
}

func archive(m Manifest, contents [][]byte) ([]byte, error) {
	manifest, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	var file bytes.Buffer
	zipped := gzip.NewWriter(&file)
	members := tar.NewWriter(zipped)
	add := func(name string, data []byte) error {
		header := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: m.Taken}
		if err := members.WriteHeader(header); err != nil {
			return err
		}
		_, err := members.Write(data)
		return err
	}
	err = add(ManifestName, append(manifest, '\n'))
	for i, member := range m.Members {
		if err == nil && member.Error == "" {
			err = add(member.Name, contents[i])
		}
	}
	if err = errors.Join(err, members.Close(), zipped.Close()); err != nil {
		return nil, fmt.Errorf("write the archive: %w", err)
	}
	return file.Bytes(), nil
}
