// Package bundle stores the evidence of an inspection in a file, so that it can be evaluated again elsewhere, and makes
// data that leaves the node safe to pass on: it removes secrets of the usual forms, and names as well if wanted. It
// treats an input file as hostile. It neither reads nor changes the node.
package bundle

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/verdict"
)

// Format and Version are at the beginning of each file. A file of another version is refused: its evidence may lack
// data on which this version decides.
const (
	Format  = "nodeagent-inspection"
	Version = 1
)

// The bounds, in bytes and numbers.
const (
	MaxFile      = 16 << 20 // of a file: compressed
	maxJSON      = 32 << 20 // of its JSON
	maxJSONCount = 300_000  // JSON objects in it: each takes some 300 bytes of memory, however short
)

// Bundle is one inspection. Its JSON form is the content of the file.
type Bundle struct {
	Format    string           `json:"format"`
	Version   int              `json:"version"`
	Agent     string           `json:"agent"`  // version
	Kernel    string           `json:"kernel"` // version
	Node      string           `json:"node"`
	Anonymous bool             `json:"anonymous"` // names of pods, namespaces and nodes are replaced
	Cut       []string         `json:"cut"`       // parts left out because of the limit
	Paths     host.Paths       `json:"paths"`
	Notes     []string         `json:"notes"` // about the discovery of the paths
	Evidence  verdict.Evidence `json:"evidence"`
}

// Encode returns the file: without secrets of the usual forms, and without names if it is to be anonymous. It leaves
// out data that would exceed the limit, in bytes: objects of living pods first, and none that would change a verdict.
func (b Bundle) Encode(limit int) ([]byte, error) {
	b.Format, b.Version = Format, Version
	if b.Anonymous {
		b = anonymize(b)
	}
	b = rewrite(b, rewriter{text: func(s string) string { return Scrub(escape(s, none)) }})
	data, err := b.compress(limit)
	if !errors.Is(err, errTooLarge) {
		return data, err
	}
	var n int
	b.Evidence, n = b.Evidence.WithoutLiving()
	b.Cut = append(b.Cut, fmt.Sprintf("%d objects that kubelet knows or that belong to no pod of it", n))
	data, err = b.compress(limit)
	if err != nil {
		return nil, fmt.Errorf("record the inspection, also without %s: %w", b.Cut[len(b.Cut)-1], err)
	}
	return data, nil
}

func none(rune) bool { return false }

var errTooLarge = errors.New("too large")

func (b Bundle) compress(limit int) ([]byte, error) {
	data, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode the inspection: %w", err)
	}
	if err := bounded(data); err != nil {
		return nil, err
	}
	var file bytes.Buffer
	zipped := gzip.NewWriter(&file)
	if _, err := zipped.Write(data); err != nil {
		return nil, err
	}
	if err := zipped.Close(); err != nil {
		return nil, err
	}
	if file.Len() > limit {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", errTooLarge, file.Len(), limit)
	}
	return file.Bytes(), nil
}

func bounded(data []byte) error {
	if len(data) > maxJSON {
		return fmt.Errorf("%w: more than %d bytes of JSON", errTooLarge, maxJSON)
	}
	if n := bytes.Count(data, []byte("{")); n > maxJSONCount {
		return fmt.Errorf("%w: %d JSON objects, more than %d", errTooLarge, n, maxJSONCount)
	}
	return nil
}

// Decode reads a file's content.
func Decode(file io.Reader) (Bundle, error) {
	var b Bundle
	zipped, err := gzip.NewReader(io.LimitReader(file, MaxFile))
	if err != nil {
		return b, fmt.Errorf("not a recorded inspection: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(zipped, maxJSON+1))
	if err != nil {
		return b, fmt.Errorf("truncated, or larger than %d bytes: %w", MaxFile, err)
	}
	if err := bounded(data); err != nil {
		return b, err
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
		Agent   string `json:"agent"`
	}
	if err := json.Unmarshal(data, &head); err != nil || head.Format != Format {
		return b, errors.Join(errors.New("not a recorded inspection"), err)
	}
	if head.Version != Version {
		return b, fmt.Errorf("version %d, recorded by nodeagent %.64q; this one reads version %d only", head.Version,
			head.Agent, Version)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b); err != nil {
		return Bundle{}, fmt.Errorf("recorded by nodeagent %.64q: %w", head.Agent, err)
	}
	return b, nil
}

// Read reads a file. Errors name it.
func Read(name string) (Bundle, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return Bundle{}, err
	}
	file, err := host.Files{}.Open(path) // for a pipe or a device, an error at once
	if err != nil {
		return Bundle{}, err
	}
	defer file.Close()
	b, err := Decode(file)
	if err != nil {
		return Bundle{}, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// WriteNew writes a file that only its owner can access. It is an error if the file, or a symbolic link, exists
// already.
func WriteNew(name string, data []byte) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already and is not overwritten", name)
	}
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name)) // a partial file is useless
	}
	return nil
}
