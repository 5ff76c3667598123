// Package settings reads files of settings strictly.
package settings

import (
	"errors"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

const maxBytes = 1 << 20

// File reads a file.
func File[T any](name string, read func(io.Reader) (T, error)) (settings T, err error) {
	f, err := os.Open(name)
	if err != nil {
		return settings, err
	}
	defer f.Close()
	return read(f)
}

// Read reads one document of YAML. An unknown key is an error, and so is a second document.
func Read(r io.Reader, to any) error {
	decoder := yaml.NewDecoder(io.LimitReader(r, maxBytes))
	decoder.KnownFields(true)
	if err := decoder.Decode(to); err != nil {
		return err
	}
	var more yaml.Node
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("more than one document")
	}
	return nil
}
