package mutate

import "context"

// SetJobs replaces systemd's jobs with a fake.
func (d *Mutator) SetJobs(run func(verb, unit string) (string, error), reset func(unit string) error) {
	d.jobs = fakeJobs{run, reset}
}

type fakeJobs struct {
	run   func(verb, unit string) (string, error)
	reset func(unit string) error
}

func (f fakeJobs) Run(_ context.Context, verb jobVerb, unit string) (string, error) {
	return f.run(string(verb), unit)
}
func (f fakeJobs) ResetFailed(_ context.Context, unit string) error { return f.reset(unit) }
