package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// upkeep returns a verb that works on the files of a center itself, and prints the result by the template of its name.
func (o *options) upkeep(use, short, long string, args int,
	work func(cmd *cobra.Command, args []string) (result any, problems bool, err error)) *cobra.Command {
	cmd := verb(use, short, args, func(cmd *cobra.Command, args []string) error {
		result, problems, err := work(cmd, args)
		if err != nil {
			return err
		}
		return problemsOf(problems, o.Print(cmd, cmd.Name(), result, nil))
	})
	cmd.Long = long
	return cmd
}

// problemsOf is the result of a verb that has done as much as possible, and has printed the problems that it found.
func problemsOf(found bool, err error) error {
	if err == nil && found {
		return command.ErrProblems
	}
	return err
}

func newVerify(o *options) *cobra.Command {
	return o.upkeep("verify", "Read the whole journal, and compare it with the state that the center shows",
		`Read the whole journal and its checksums, and compare the resulting state with the center's last checkpoint, which
is at most 5 minutes old. It reads the center's directory, also while the center runs, and changes nothing.`,
		0, func(cmd *cobra.Command, _ []string) (any, bool, error) {
			v, err := eventcenter.Verify(cmd.Context(), o.Dir)
			return v, !v.Fine(), err
		})
}

func newBackup(o *options) *cobra.Command {
	return o.upkeep("backup FILE", "Write the journal and the checkpoints into an archive, also while the center runs",
		`Write the journal, the checkpoints and the control store into an archive, also while the center runs. The archive of
a damaged directory has all that can be read; the command names lost parts, and the exit code is 1.`,
		1, func(cmd *cobra.Command, args []string) (any, bool, error) {
			m, err := eventcenter.Backup(cmd.Context(), o.Dir, args[0])
			return struct {
				eventcenter.Manifest
				Archive string `json:"-"`
			}{m, args[0]}, len(m.Gaps)+len(m.Unread) > 0, err
		})
}

func newSalvage(o *options) *cobra.Command {
	return o.upkeep("salvage DIR NEW", "Copy all that can be read of a damaged directory into a new one",
		`Copy all that can be read of a center's damaged directory DIR into the directory NEW, with which the center can
continue: the journal's UUID and offsets stay. Stop the center first. DIR is not changed. If events are lost, the command
names them, and the exit code is 1.`,
		2, func(cmd *cobra.Command, args []string) (any, bool, error) {
			done, err := eventcenter.Salvage(cmd.Context(), args[0], args[1], slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			return struct {
				eventcenter.Salvaged
				Dir string `json:"-"`
			}{done, args[1]}, len(done.Unread)+len(done.Gaps) > 0, err
		})
}

func newRestore(o *options) *cobra.Command {
	return o.upkeep("restore FILE", "Create a directory from an archive; it must not have a journal yet",
		`Create the center's directory from an archive. Events after the backup are missing, and their offsets will be
given to other events: the journal gets a new UUID, by which consumers notice. The next start creates a new token.`,
		1, func(_ *cobra.Command, args []string) (any, bool, error) {
			m, err := eventcenter.Restore(args[0], o.Dir)
			return struct {
				eventcenter.Manifest
				Dir string `json:"-"`
			}{m, o.Dir}, false, err
		})
}
