package setting

import (
	"errors"
	"testing"
)

func TestMistakes(t *testing.T) {
	wrong := Mistakes{}
	wrong.Check("a", true, "fine")
	wrong.Add("a", nil)
	if err := wrong.OrNil(); err != nil {
		t.Error(err)
	}
	wrong.Check("b", false, "%d: the first stays", 1)
	wrong.Check("b", false, "the second")
	wrong.Add("b", errors.New("the third"))
	wrong.Add("windows.0", errors.New("no time of day"))
	wrong.Add("disk", Mistakes{"free": "50% at most"})
	wrong.Add("", Mistakes{"socket": "not absolute"})
	const want = "b: 1: the first stays\ndisk.free: 50% at most\nsocket: not absolute\nwindows.0: no time of day"
	if err := wrong.OrNil(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
