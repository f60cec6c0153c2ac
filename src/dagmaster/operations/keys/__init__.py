"""Operations on API keys, one in each module. The text of a key is returned once and not stored."""

from dagmaster.operations.keys.create import create_first_key, create_key
from dagmaster.operations.keys.revoke import revoke_key
from dagmaster.operations.keys.rotate import rotate_key

__all__ = ["create_first_key", "create_key", "revoke_key", "rotate_key"]
