package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// hangingBench is one whose calls end when the test does.
type hangingBench struct {
	end   chan struct{}
	close bool // hangs, too
}

func (h hangingBench) Pass(context.Context, ...inspect.Kind) (inspect.Report, error) {
	return inspect.Report{Errors: []inspect.Failure{{What: "a pass"}}}, nil
}

func (h hangingBench) Close() error {
	if h.close {
		<-h.end
	}
	return nil
}

func TestInspectEndsInTime(t *testing.T) {
	for name, test := range map[string]struct {
		openHangs, closeHangs bool
		openErr               error
		want                  string // what the report's failure is about
		most                  time.Duration
	}{
		"all is well":      {want: "a pass"},
		"opening hangs":    {openHangs: true, want: "layout", most: openLimit},
		"closing hangs":    {closeHangs: true, want: "a pass", most: closeLimit},
		"cannot be opened": {openErr: errors.New("no configuration")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				begun := time.Now()
				report, err := inspectOnce(t.Context(), func(context.Context) (bench, error) {
					if test.openHangs {
						<-end
					}
					return hangingBench{end, test.closeHangs}, test.openErr
				}, nil)
				took := time.Since(begun)
				close(end)
				synctest.Wait()
				if !errors.Is(err, test.openErr) || took > test.most {
					t.Errorf("%v after %s", err, took)
				}
				if err == nil && (len(report.Errors) != 1 || report.Errors[0].What != test.want || test.openHangs &&
					!strings.Contains(report.Errors[0].Error, "hangs")) {
					t.Errorf("errors: %+v", report.Errors)
				}
				if err == nil && inspectExit(report).(*exitError).Code != exitCouldNotTell { //nolint:errorlint // it is no other
					t.Error("exit code")
				}
			})
		})
	}
}
