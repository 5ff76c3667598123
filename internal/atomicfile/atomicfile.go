// Package atomicfile replaces small state files of the programs. After a crash or on a full disk either the old or the
// new file exists, never a part. It follows no symbolic link, and only the owner can access a file.
package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Write replaces a file with the output of write. It takes no lock: if two callers write the same file at the same
// time, one may fail, or may install a part of the other's content.
func Write(name string, write func(io.Writer) error) error {
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a crash
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

// WriteData replaces the content of a file with data.
func WriteData(name string, data []byte) error {
	return Write(name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
