package eventcenter

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func recorded(tb testing.TB) map[string][]byte {
	tb.Helper()
	files := map[string][]byte{}
	names, err := filepath.Glob("testdata/old-outbox/*")
	for _, name := range names {
		if files[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			break
		}
	}
	if err != nil || len(files) != 3 {
		tb.Fatal(len(files), err)
	}
	return files
}

// Whichever bit of an old file is flipped: every event read has its original content.
func TestDamagedOldFile(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	whole := map[string]string{}
	for _, i := range readOld(recorded(t), log) {
		whole[i.ID] = string(i.Body)
	}
	for name, data := range recorded(t) {
		for i := 0; i < len(data)*8; i += 7 { // all take a minute
			files := recorded(t)
			files[name][i/8] ^= 1 << (i % 8)
			for _, got := range readOld(files, log) {
				if got.Lost == "" && whole[got.ID] != string(got.Body) {
					t.Fatalf("bit %d of %s: %s", i, name, got.Body)
				}
			}
		}
	}
}

func FuzzReadOld(f *testing.F) {
	for name, data := range recorded(f) {
		f.Add(name, data)
	}
	f.Fuzz(func(_ *testing.T, name string, data []byte) {
		readOld(map[string][]byte{name: data}, slog.New(slog.DiscardHandler))
	})
}

func TestULID(t *testing.T) {
	early, late := newULID(time.Unix(1, 0)), newULID(time.Unix(2, 0))
	if !isULID(early) || !isULID(late) || early >= late || newULID(time.Unix(1, 0)) == early ||
		early[:10] != "00000000Z8" { // 1000 in base 32
		t.Error(early, late)
	}
}
