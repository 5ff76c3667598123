package checktest

import (
	"testing"

	"golang.org/x/tools/txtar"
)

// Recorded returns the files of an archive by name, for a test that replays them itself.
func Recorded(t *testing.T, archive string) map[string][]byte {
	t.Helper()
	read, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range read.Files {
		files[f.Name] = f.Data
	}
	return files
}
