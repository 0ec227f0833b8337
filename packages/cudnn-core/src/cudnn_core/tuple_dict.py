"""TupleDict: the result type of every operation. Imports nothing."""


class TupleDict(dict):
    """A dict that unpacks and indexes like the tuple of its values.

    ``a, b = d``, ``d[0]`` and ``d["name"]`` all work. The order is that of construction and stays
    fixed: keys added later are reached by name only. Integers index (``0 <= i < len``, otherwise
    IndexError), so an integer can never be a key that ``[]`` finds. Everything else is dict's own.
    """

    __slots__ = ("_order",)
    __hash__ = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._order = tuple(super().keys())

    @classmethod
    def of(cls, names, values):
        """The TupleDict of names and as many values; `names` is a tuple. Cheaper than the constructor."""
        made = cls.__new__(cls)
        dict.update(made, zip(names, values, strict=True))
        made._order = names
        return made

    def __iter__(self):
        return (dict.__getitem__(self, key) for key in self._order)

    def __getitem__(self, key):
        if isinstance(key, int):
            if not 0 <= key < len(self._order):
                raise IndexError(
                    f"TupleDict index {key} is out of range: expected 0 <= index < "
                    f"{len(self._order)}"
                )
            key = self._order[key]
        return dict.__getitem__(self, key)

    def __reduce__(self):
        # dict's own protocol iterates the object, which here yields values.
        return _restore, (type(self), list(dict.items(self)), self._order)


def _restore(cls, items, order):
    restored = cls(items)
    restored._order = order
    return restored


_registered_with_jax = False


def register_with_jax():
    """Makes TupleDict a JAX pytree (children: values, static part: keys), once per process."""
    global _registered_with_jax
    if _registered_with_jax:
        return
    import jax

    jax.tree_util.register_pytree_with_keys(
        TupleDict,
        lambda d: ([(jax.tree_util.DictKey(k), v) for k, v in d.items()], tuple(d.keys())),
        lambda keys, values: TupleDict(zip(keys, values, strict=True)),
    )
    _registered_with_jax = True
