package detect

import (
	"maps"
	"testing"
)

type mapStore map[string][]byte

func (m mapStore) Load(key string) ([]byte, bool) { v, ok := m[key]; return v, ok }
func (m mapStore) Save(key string, v []byte)      { m[key] = v }

func TestSaved(t *testing.T) {
	store := mapStore{}
	saved := Saved[map[string]int]{Store: store, Key: "a/b"}
	small := func(v map[string]int) bool { return len(v) < 3 }
	if v, ok := saved.Load(small); ok || v != nil {
		t.Errorf("nothing was saved: got %v, %v", v, ok)
	}
	saved.Save(map[string]int{"x": 1})
	if v, ok := saved.Load(small); !ok || !maps.Equal(v, map[string]int{"x": 1}) {
		t.Errorf("after Save: got %v, %v", v, ok)
	}
	for name, kept := range map[string]string{
		"malformed": `{"x": `, "of another type": `[1]`, "half decoded": `{"x": 1, "y": "z"}`,
		"not usable": `{"a": 1, "b": 2, "c": 3}`,
	} {
		store["a/b"] = []byte(kept)
		if v, ok := saved.Load(small); ok || v != nil {
			t.Errorf("%s: got %v, %v", name, v, ok)
		}
	}
	saved.Store = nil
	saved.Save(nil)
	if _, ok := saved.Load(small); ok {
		t.Error("loaded without a store")
	}
}
