package eventcenter

import (
	"bytes"
	"testing"
	"time"
)

// Whatever bit of a record has changed, it is not taken for one.
func TestDamagedRecord(t *testing.T) {
	data := record{7, 3, time.Unix(5, 0), []byte(`{"a":1}`)}.append(nil)
	got, rest, err := readRecord(data)
	if err != nil || len(rest) > 0 || got.sequence != 7 || got.acknowledged != 3 || string(got.body) != `{"a":1}` {
		t.Fatal(got, rest, err)
	}
	for i := range len(data) * 8 {
		damaged := bytes.Clone(data)
		damaged[i/8] ^= 1 << (i % 8)
		if got, _, err := readRecord(damaged); err == nil {
			t.Errorf("bit %d: %v", i, got)
		}
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add(record{7, 3, time.Unix(5, 0), []byte(`{"a":1}`)}.append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, rest, err := readRecord(data)
		if err == nil && !bytes.Equal(append(r.append(nil), rest...), data) {
			t.Error("it is not what was read")
		}
	})
}

func TestULID(t *testing.T) {
	early, late := newULID(time.Unix(1, 0)), newULID(time.Unix(2, 0))
	if !isULID(early) || !isULID(late) || early >= late || newULID(time.Unix(1, 0)) == early ||
		early[:10] != "00000000Z8" { // 1000 in base 32
		t.Error(early, late)
	}
}
