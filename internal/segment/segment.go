// Package segment holds a directory of append-only files. It reads and writes with plain calls and maps nothing: a
// read that fails is an error, not a signal. It knows nothing of what the files hold.
package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Dir is such a directory. It and its files are made by the first Append, for root alone.
type Dir struct {
	Path string
	Max  int64 // bytes of one file; a longer one is read up to here
}

// Scan calls f for each file, in the order of their names. A file that cannot be read is passed with what was read of
// it and the error.
func (d Dir) Scan(f func(name string, data []byte, err error)) error {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			data, err := d.read(e.Name())
			f(e.Name(), data, err)
		}
	}
	return err
}

func (d Dir) read(name string) ([]byte, error) {
	file, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, d.Max))
}

// Append adds data to the end of a file and waits until it is on the disk. After an error the file may end with a part
// of the data.
func (d Dir) Append(name string, data []byte) error {
	file, err := d.open(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(d.Path, 0o700); err == nil {
			file, err = d.open(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE)
		}
	}
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

// ReadAt returns size bytes of a file.
func (d Dir) ReadAt(name string, offset int64, size int) ([]byte, error) {
	file, err := d.open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data := make([]byte, size)
	if _, err := file.ReadAt(data, offset); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// Remove removes a file. That there is none is no error.
func (d Dir) Remove(name string) error {
	err := os.Remove(filepath.Join(d.Path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d Dir) open(name string, flags int) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.Path, name), flags|syscall.O_NOFOLLOW, 0o600)
}
