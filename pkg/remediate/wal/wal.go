// Package wal keeps the write-ahead logs of the agent's changes on the host: files of JSON lines, each on disk before
// the agent goes on. It makes no decisions, and does not interpret the lines.
package wal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	// MaxSize is when a log becomes NAME.1, in bytes: both hold more than a year of normal use.
	MaxSize   = 1 << 20
	maxRecord = 64 << 10
	maxText   = 4 << 10
)

// File is an append-only file of JSON lines. It must have one writer: open it only while a lock is held.
type File struct {
	file *os.File
	name string
	size int64
}

// Open opens a log for appending, and creates it and its directory if missing.
func Open(name string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	f := &File{name: name}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) open() error {
	file, err := os.OpenFile(f.name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		err = syncDir(filepath.Dir(f.name))
	}
	if err == nil {
		err = endLine(file, size)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("journal: %w", err)
	}
	f.file, f.size = file, size
	return nil
}

// endLine ends a line that a crash has truncated, so that the next record gets its own line.
func endLine(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	last := make([]byte, 1)
	if _, err := file.ReadAt(last, size-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	_, err := file.Write([]byte("\n"))
	return err
}

// Write appends one record and syncs it to disk.
func (f *File) Write(record any) error {
	line, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if len(line) > maxRecord {
		return fmt.Errorf("journal: record of %d bytes", len(line))
	}
	// One write, so that only a crash or a full disk can truncate it.
	n, err := f.file.Write(append(line, '\n'))
	f.size += int64(n)
	if err == nil {
		err = f.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// Rotate renames an oversized log. It replaces the previous one.
func (f *File) Rotate() error {
	if f.size < MaxSize {
		return nil
	}
	if err := os.Rename(f.name, f.name+".1"); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := f.file.Close(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return f.open()
}

// Clip limits a message of a plugin or a runtime to a size that fits a record.
func Clip(text string) string { return finding.Clip(text, maxText) }

// Close closes the file. All records are on disk already.
func (f *File) Close() error { return f.file.Close() }

// Read returns all records of a log for which valid is true, oldest first. A last line truncated by a crash, and
// malformed lines, are counted and skipped: the state of the node is never derived from a log.
func Read[T any](name string, valid func(T) bool) (records []T, skipped int, err error) {
	for _, file := range []string{name + ".1", name} {
		data, err := host.Files{}.Read(file) // never blocks
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("journal: %w", err)
		}
		more, torn := Parse(data, valid)
		records, skipped = append(records, more...), skipped+torn
	}
	return records, skipped, nil
}

// Parse is Read of the content of one file.
func Parse[T any](data []byte, valid func(T) bool) (records []T, skipped int) {
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var r T
		if err := json.Unmarshal(line, &r); err != nil || !valid(r) {
			skipped++
			continue
		}
		records = append(records, r)
	}
	return records, skipped
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
