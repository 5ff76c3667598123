//go:build !race

package release

const someHostileNodes = 500
