package command

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Verb is a command that prints the answer to a GET request.
type Verb[T any] struct {
	Use, Short, Long string
	Path             string                       // of the request; empty: /v1/ and the verb's name
	Template         string                       // for the text of the answer; empty: of the verb's name
	Formats          string                       // of the output, divided by spaces; empty: text json
	PathOf           func(string) (string, error) // of the request about an argument; nil: the verb has none
	Flags            func(*pflag.FlagSet)         // the parameters of the request, of type string or lists of strings; nil: none
	More             func(*cobra.Command) error   // prints more text after the answer; nil: there is none
	Unknown, Problem func(*T) bool                // of the answer, for the exit code; nil: never
}

// Command returns the verb.
func (v Verb[T]) Command(a *Asker) *cobra.Command {
	cmd := &cobra.Command{Use: v.Use, Short: v.Short, Long: v.Long, Args: cobra.NoArgs}
	if v.PathOf != nil {
		cmd.Args = cobra.ExactArgs(1)
	}
	if v.Formats != "" {
		cmd.Annotations = map[string]string{formats: v.Formats}
	}
	if v.Flags != nil {
		v.Flags(cmd.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		path := cmp.Or(v.Path, "/v1/"+cmd.Name())
		if v.PathOf != nil {
			if path, err = v.PathOf(args[0]); err != nil {
				return err
			}
		}
		query := Parameters(cmd)
		if a.Output == "html" {
			query.Set("format", "html")
			query.Set("base", a.Address()) // of its links
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		if a.Output == "html" {
			return a.Copy(cmd.Context(), cmd.OutOrStdout(), path)
		}
		var answer T
		err = a.Show(cmd, http.MethodGet, path, nil, cmp.Or(v.Template, cmd.Name()), &answer)
		if err == nil && v.More != nil && a.Output != "json" {
			err = v.More(cmd)
		}
		switch {
		case err != nil:
		case v.Unknown != nil && v.Unknown(&answer):
			err = errors.New("could not tell")
		case v.Problem != nil && v.Problem(&answer):
			err = ErrProblems
		}
		return err
	}
	return cmd
}

// Parameters returns the flags of a verb as the parameters of its request.
func Parameters(cmd *cobra.Command) url.Values {
	query := url.Values{}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		switch list, isList := f.Value.(pflag.SliceValue); {
		case isList && len(list.GetSlice()) > 0:
			query[f.Name] = list.GetSlice()
		case !isList && f.Value.Type() == "string" && f.Value.String() != "":
			query.Set(f.Name, f.Value.String())
		}
	})
	return query
}
