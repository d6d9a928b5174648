package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePatternThatMatchesBestComesFirst(t *testing.T) {
	var p paths[string]
	for _, pattern := range []string{"/**", "/a/**", "/a/{id}", "/a/b", "/a/b/**", "/a/{id}/c", "/a/*/d/**", "/a/b/c/e"} {
		require.NoError(t, verifyPattern(pattern))
		p.add(pattern, pattern)
	}
	for path, want := range map[string][]string{
		"/":        {"/**"},
		"/x":       {"/**"},
		"/a":       {"/a/**", "/**"},
		"/a/b":     {"/a/b", "/a/b/**", "/a/{id}", "/a/**", "/**"},
		"/a/7":     {"/a/{id}", "/a/**", "/**"},
		"/a/b/c":   {"/a/b/**", "/a/{id}/c", "/a/**", "/**"},
		"/a/b/c/e": {"/a/b/c/e", "/a/b/**", "/a/**", "/**"},
		"/a/7/d":   {"/a/*/d/**", "/a/**", "/**"},
		"/a/7/d/e": {"/a/*/d/**", "/a/**", "/**"},
		"/ab":      {"/**"},
	} {
		var found []string
		p.visit(Canonical(path), func(values []string) bool { found = append(found, values...); return false })
		require.Equal(t, want, found, path)
	}
}

// Spellings of a path that servers commonly take for one and the same.
func TestCanonical(t *testing.T) {
	for spelled, want := range map[string]string{
		"/a/b": "/a/b", "/a/b/": "/a/b", "/a//b": "/a/b", "/a/./b": "/a/b", "/a/x/../b": "/a/b", "/a;x=1/b": "/a/b", "/a/b;jsessionid=1": "/a/b",
		"/a/x/..;/b": "/a/b", "/..;/..;/a/b": "/a/b", "//a/b": "/a/b", "": "/", "/": "/", ";": "/", "/a/;/b": "/a/b",
	} {
		require.Equal(t, want, Canonical(spelled), spelled)
	}
}

// What servers that know parameters of segments (Tomcat, Spring) make of a path.
func TestPathOf(t *testing.T) {
	for escaped, want := range map[string]string{
		"": "/", "/": "/", "/a/b/": "/a/b", "/a/../b": "/b", "/a/%E4%BD%A0": "/a/你", "/a/x%2Fy": "/a/x/y", "/a/..x/...": "/a/..x/...",
		"/a/b;x=1/c": "/a/b/c", "/admin;%2Fx": "/admin", "/admin;x%2F": "/admin", "/a/x.%2F.y": "/a/x./.y",
	} {
		got, err := PathOf(escaped)
		require.NoError(t, err, escaped)
		require.Equal(t, want, Canonical(got), escaped)
	}
}

// One server takes such a path for another one than the next: /admin;%2F..%2Fpublic is
// /admin to Tomcat and /public to whoever decodes first.
func TestAPathThatHidesDotsIsNone(t *testing.T) {
	for _, escaped := range []string{
		"/admin;%2F..%2Fpublic", "/a/..;/b", "/a/..;x/../b", "/a/.;/b", "/a/%2e%2e/b", "/a/%2E/b", "/a/x%2F..", "/a/..%2Fb", "/a/..%3B/b", "/a/x%5C..%5Cb", "/a/x;..%2F../b",
	} {
		_, err := PathOf(escaped)
		require.ErrorIs(t, err, ErrHiddenDots, escaped)
	}
	_, err := PathOf("/a/%zz")
	require.Error(t, err)
}

func TestPatternsThatAreNone(t *testing.T) {
	for _, pattern := range []string{"", "a", "/a/", "//", "/a//b", "/a/../b", "/a/**/b", "/a/b**", "/a/{id", "/a/{}", "/a/{i d}", "/a/x{id}", "/a/b;x", "/a?b", "/a#b", "/a/ b", "/" + strings.Repeat("a", 512)} {
		require.Error(t, verifyPattern(pattern), pattern)
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("/a/{id}/**", "/a/7/b")
	f.Add("/**", "")
	f.Add("/a/*", "/a/..;/b")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		canonical := Canonical(path)
		if Canonical(canonical) != canonical {
			t.Fatalf("%q is not canonical", canonical)
		}
		if verifyPattern(pattern) != nil {
			return
		}
		var p paths[bool]
		p.add(pattern, true)
		_, ok := p.matches(canonical, func(bool) bool { return true })
		if isLiteral := !strings.ContainsAny(pattern, "*{"); isLiteral && ok != (pattern == canonical) {
			t.Fatalf("%q and %q: %v", pattern, canonical, ok)
		}
	})
}
