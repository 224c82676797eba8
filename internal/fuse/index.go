package fuse

// index tells who makes and who uses the storages of a graph. Its lists are by the number of the storage, since Group looks there often.
type index struct {
	users [][]int
	made  [][]version
	alive []bool
	// top is the highest number of a storage.
	top int
}

// version is a version of a storage and the output that made it.
type version struct {
	number int
	by     Ref
}

// top returns the highest number of a storage that the calls use.
func (g *Graph) top() (top int) {
	for i := range g.Calls {
		c := &g.Calls[i]
		for k := range len(c.Ins) + len(c.Outs) {
			top = max(top, c.at(k).Storage)
		}
	}
	return top
}

// alive returns by storage, up to number top, whether it is live.
func (g *Graph) alive(top int) []bool {
	all := make([]bool, top+1)
	for _, s := range g.Live {
		if s <= top {
			all[s] = true
		}
	}
	return all
}

// fill reads the graph anew.
func (x *index) fill(g *Graph) {
	x.top = g.top()
	x.alive = g.alive(x.top)
	for s := range x.users {
		x.users[s], x.made[s] = x.users[s][:0], x.made[s][:0]
	}
	for len(x.users) <= x.top {
		x.users, x.made = append(x.users, nil), append(x.made, nil)
	}
	for i := range g.Calls {
		c := &g.Calls[i]
		for j := range c.Ins {
			if s := c.Ins[j].Storage; s != 0 {
				x.users[s] = append(x.users[s], i)
			}
		}
		for j := range c.Outs {
			v := &c.Outs[j]
			x.users[v.Storage] = append(x.users[v.Storage], i)
			x.made[v.Storage] = append(x.made[v.Storage], version{v.Version, Ref{i, j}})
		}
	}
}

// maker returns the output that makes a version of a storage.
func (x *index) maker(storage, number int) (r Ref, ok bool) {
	for _, v := range x.made[storage] {
		if v.number == number {
			return v.by, true
		}
	}
	return r, false
}
