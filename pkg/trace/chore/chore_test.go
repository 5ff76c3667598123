package chore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Chores follow each other, each as often as it wants; a change between failing and working is logged once.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done, began := "", time.Now()
		failsTwice := func(_ context.Context, now time.Time) error {
			done += fmt.Sprintf("a%.0f ", now.Sub(began).Seconds())
			if now.Sub(began) < 2*time.Second {
				return errors.New("no disk")
			}
			return nil
		}
		last := func(_ context.Context, now time.Time) error {
			done += fmt.Sprintf("b%.0f ", now.Sub(began).Seconds())
			if now.Sub(began) >= 6*time.Second {
				cancel()
			}
			return nil
		}
		Repeat(ctx, slog.New(slog.NewTextHandler(&log, nil)), time.Second, Chore{Name: "first", Do: failsTwice}, Chore{Every: 3 * time.Second, Do: last})
		if want := "a0 b0 a1 a2 a3 b3 a4 a5 a6 b6 "; done != want {
			t.Errorf("%s, want %s", done, want)
		}
		if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "fails, retrying\" work=first err=\"no disk\"") || !strings.Contains(text, "succeeds again\" work=first") {
			t.Error(text)
		}
	})
}
