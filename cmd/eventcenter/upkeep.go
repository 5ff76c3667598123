package main

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

func newVerify(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read the whole journal, and compare it with the state that the center shows",
		Long: `Read the whole journal and its checksums, and compare the resulting state with the center's last checkpoint, which
is at most 5 minutes old. It reads the center's directory, also while the center runs, and changes nothing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v, err := eventcenter.Verify(cmd.Context(), o.Dir)
			if err != nil {
				return err
			}
			return problemsOf(!v.Fine(), o.Print(cmd, "verification", v, nil))
		},
	}
}

// problemsOf is the result of a verb that has done as much as possible, and has printed the problems that it found.
func problemsOf(found bool, err error) error {
	if err == nil && found {
		return command.ErrProblems
	}
	return err
}

func newBackup(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the journal and the checkpoints into an archive, also while the center runs",
		Long: `Write the journal and the checkpoints into an archive, also while the center runs. The archive of
a damaged journal has all that can be read; the command names lost parts, and the exit code is 1.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Backup(cmd.Context(), o.Dir, args[0])
			if err != nil {
				return err
			}
			return problemsOf(len(m.Gaps) > 0, o.Print(cmd, "backup", struct {
				eventcenter.Manifest
				Archive string `json:"-"`
			}{m, args[0]}, nil))
		},
	}
}

func newSalvage(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "salvage DIR NEW",
		Short: "Copy all that can be read of a damaged directory into a new one",
		Long: `Copy all that can be read of a center's damaged directory DIR into the directory NEW, with which the center can
continue: the journal's UUID and offsets stay. Stop the center first. DIR is not changed. If events are lost, the command
names them, and the exit code is 1.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := eventcenter.Salvage(cmd.Context(), args[0], args[1], slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
			if err != nil {
				return err
			}
			return problemsOf(len(done.Unread)+len(done.Gaps) > 0, o.Print(cmd, "salvage", struct {
				eventcenter.Salvaged
				Dir string `json:"-"`
			}{done, args[1]}, nil))
		},
	}
}

func newRestore(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "restore FILE",
		Short: "Create a directory from an archive; it must not have a journal yet",
		Long: `Create the center's directory from an archive. Events after the backup are missing, and their offsets will be
given to other events: the journal gets a new UUID, by which consumers notice. The next start creates a new token.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := eventcenter.Restore(args[0], o.Dir)
			if err != nil {
				return err
			}
			return o.Print(cmd, "restore", struct {
				eventcenter.Manifest
				Dir string `json:"-"`
			}{m, o.Dir}, nil)
		},
	}
}
