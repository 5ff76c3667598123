// Package atomicfile replaces small files of the programs' own state. After a crash or on a full disk the old file or
// the new one is there, never a part. It follows no symbolic link, and a file is for its owner alone.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Write replaces a file by what write writes. It takes no lock: of two that write the same file at the same time one may
// fail, or put a part of the other's in its place.
func Write(name string, write func(io.Writer) error) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a crash
		return err
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err = write(file); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next)) // a full disk gets its space back
	}
	return nil
}

// WriteData replaces a file by data.
func WriteData(name string, data []byte) error {
	return Write(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
